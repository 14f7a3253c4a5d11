from torch_openreg.openreg.sparse import *

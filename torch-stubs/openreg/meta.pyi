from torch_openreg.openreg.meta import *

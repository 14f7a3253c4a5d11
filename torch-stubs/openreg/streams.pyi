from torch_openreg.openreg.streams import *

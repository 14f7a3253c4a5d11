from torch_openreg.openreg.comm import *

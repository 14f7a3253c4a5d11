from torch_openreg.backends import *

from torch_openreg.openreg.random import *

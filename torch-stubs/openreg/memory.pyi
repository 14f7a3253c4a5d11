from torch_openreg.openreg.memory import *

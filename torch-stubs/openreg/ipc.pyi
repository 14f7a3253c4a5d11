from torch_openreg.openreg.ipc import *

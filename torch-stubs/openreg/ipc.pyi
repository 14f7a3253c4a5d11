from torch_openreg.extras.ipc.ipc import *

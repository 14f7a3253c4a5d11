from torch_openreg.openreg.devices import *

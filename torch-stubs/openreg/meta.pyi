from torch_openreg.extras.custom.meta import *

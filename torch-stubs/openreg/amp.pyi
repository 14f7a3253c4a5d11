from torch_openreg.openreg.amp import *

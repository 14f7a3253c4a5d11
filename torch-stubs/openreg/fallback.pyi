from torch_openreg.openreg.fallback import *

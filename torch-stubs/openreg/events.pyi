from torch_openreg.openreg.events import *

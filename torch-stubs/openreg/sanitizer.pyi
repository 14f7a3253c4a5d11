from torch_openreg.openreg.sanitizer import *

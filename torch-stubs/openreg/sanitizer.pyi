from torch_openreg.extras.sanitizer.sanitizer import *

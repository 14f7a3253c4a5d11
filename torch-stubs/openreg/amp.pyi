from torch_openreg.extras.autocast.amp import *

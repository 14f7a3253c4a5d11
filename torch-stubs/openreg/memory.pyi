from torch_openreg.extras.poison.poison import *
from torch_openreg.openreg.memory import *

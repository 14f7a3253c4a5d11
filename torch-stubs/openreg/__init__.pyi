# The module that torch_openreg attaches, under the name that programs use.
from torch_openreg.openreg import *

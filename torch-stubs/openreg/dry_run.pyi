from torch_openreg.extras.dry_run.dry_run import *

# The module that torch_openreg attaches, under the name that programs use.
from torch_openreg.extras.autocast import amp as amp
from torch_openreg.extras.autocast.amp import get_amp_supported_dtype as get_amp_supported_dtype
from torch_openreg.extras.custom import meta as meta
from torch_openreg.extras.distributed import nccl as nccl
from torch_openreg.extras.dry_run import dry_run as dry_run
from torch_openreg.extras.graph.graphed_callables import *
from torch_openreg.extras.graph.graphs import CUDAGraph as CUDAGraph
from torch_openreg.extras.graph.graphs import Graph as Graph
from torch_openreg.extras.graph.graphs import graph as graph
from torch_openreg.extras.graph.graphs import graph_pool_handle as graph_pool_handle
from torch_openreg.extras.ipc.ipc import *
from torch_openreg.extras.profiler import profiler as profiler
from torch_openreg.extras.sanitizer import sanitizer as sanitizer
from torch_openreg.extras.sanitizer.sanitizer import SanitizerError as SanitizerError
from torch_openreg.extras.sanitizer.sanitizer import SanitizerWarning as SanitizerWarning
from torch_openreg.openreg import AcceleratorError as AcceleratorError
from torch_openreg.openreg import OutOfMemoryError as OutOfMemoryError
from torch_openreg.openreg import comm as comm
from torch_openreg.openreg import default_generators as default_generators
from torch_openreg.openreg import sparse as sparse
from torch_openreg.openreg.devices import *
from torch_openreg.openreg.fallback import *
from torch_openreg.openreg.initialization import *
from torch_openreg.openreg.memory import *
from torch_openreg.openreg.random import *
from torch_openreg.openreg.streams import *
from torch_openreg.openreg.tensor_types import *

// Memory faults: reports the allocation if the host accessed device memory, and continues the host
// if it accessed watched memory.
#pragma once

namespace openreg {

// Makes sure that the fault handler is installed, before all others. Fails as base/os.h says.
bool install_fault_handler();

}  // namespace openreg

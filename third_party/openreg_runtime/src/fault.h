// Memory faults: names the allocation when the host touches device memory.
#pragma once

namespace openreg {

// Installs the fault handler, in front of the one that is there. Called once. Fails as os.h says.
bool install_fault_handler();

}  // namespace openreg

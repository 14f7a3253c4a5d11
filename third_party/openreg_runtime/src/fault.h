// Memory faults: names the allocation when the host touches device memory, and lets the host go on
// where it touches watched memory.
#pragma once

namespace openreg {

// Sees to it that the fault handler is there, in front of all others. Fails as os.h says.
bool install_fault_handler();

}  // namespace openreg

// Reading small files of the operating system.
#pragma once

#include <fstream>
#include <string>

namespace openreg::os {

// What `read` makes of a file, `otherwise` if it cannot be read. A stream swallows what is thrown
// while it reads, which may be a bad_alloc, unless it is told not to.
template <typename Value, typename Read>
Value read_file(const std::string& path, Value otherwise, const Read& read) {
  try {
    std::ifstream file(path);
    file.exceptions(std::ios::badbit);
    return read(file);
  } catch (const std::ios_base::failure&) {
    return otherwise;
  }
}

}  // namespace openreg::os

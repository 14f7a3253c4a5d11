// Building message texts.
#pragma once

#include <sstream>
#include <string>

namespace openreg {

// The parts, printed one after the other.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return std::move(stream).str();
}

}  // namespace openreg

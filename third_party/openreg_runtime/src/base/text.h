// Building message texts.
#pragma once

#include <sstream>
#include <string>

namespace openreg {

// The parts, printed one after the other.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.exceptions(std::ios::badbit);  // or it would swallow a bad_alloc, and cut the text
  (stream << ... << parts);
  return std::move(stream).str();
}

}  // namespace openreg

// Texts that are exchanged with other processes, in a field of fixed size.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace at::openreg {

// The longest prefix of at most `limit` bytes that does not end inside a character.
std::string_view cutUtf8(std::string_view text, size_t limit);

// The text with U+FFFD in place of invalid UTF-8, as Python's bytes.decode("utf-8", "replace")
// makes it. Python decodes the texts of exceptions as UTF-8 and fails if they are invalid.
std::string replaceInvalidUtf8(std::string_view text);

}  // namespace at::openreg

// Texts that come from other processes, or go there in a field of fixed size.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace at::openreg {

// The longest beginning of a text that has at most `limit` bytes and does not end inside of a
// character.
std::string_view cutUtf8(std::string_view text, size_t limit);

// The text with U+FFFD in place of what is not UTF-8, as Python's bytes.decode("utf-8", "replace")
// makes it: Python takes the texts of exceptions as UTF-8 and fails if they are not.
std::string replaceInvalidUtf8(std::string_view text);

}  // namespace at::openreg

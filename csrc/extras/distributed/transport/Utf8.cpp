#include "csrc/extras/distributed/transport/Utf8.h"

#include <algorithm>

namespace at::openreg {
namespace {

struct Character {
  size_t size;  // in bytes
  bool is_valid;
};

// The first character of a non-empty text or, if it is invalid, the bytes that one U+FFFD replaces.
Character firstCharacter(std::string_view text) {
  const auto byte = [&](size_t position) { return static_cast<unsigned char>(text[position]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return {1, true};
  }
  size_t size = 0;
  if (first >= 0xc2 && first <= 0xdf) {
    size = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    size = 3;
  } else if (first >= 0xf0 && first <= 0xf4) {
    size = 4;
  } else {
    return {1, false};
  }
  // The range of the second byte excludes overlong forms, surrogates, and values above U+10FFFF.
  unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (size_t position = 1; position < size; ++position) {
    if (position == text.size() || byte(position) < low || byte(position) > high) {
      return {position, false};
    }
    low = 0x80;
    high = 0xbf;
  }
  return {size, true};
}

}  // namespace

std::string_view cutUtf8(std::string_view text, size_t limit) {
  if (text.size() <= limit) {
    return text;
  }
  constexpr size_t kLongest = 4;
  const auto continues = [&](size_t position) {
    return (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80;
  };
  size_t end = limit;
  while (end > 0 && limit - end < kLongest - 1 && continues(end)) {
    --end;
  }
  return text.substr(0, continues(end) ? limit : end);
}

std::string replaceInvalidUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character character = firstCharacter(text);
    result += character.is_valid ? text.substr(0, character.size) : "\xef\xbf\xbd";
    text.remove_prefix(character.size);
  }
  return result;
}

}  // namespace at::openreg

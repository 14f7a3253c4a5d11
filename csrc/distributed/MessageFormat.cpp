#include "csrc/distributed/MessageFormat.h"

#include <c10/util/StringUtil.h>

#include <vector>

#include "csrc/distributed/Contract.h"
#include "csrc/distributed/GroupState.h"
#include "csrc/distributed/Utf8.h"

namespace at::openreg {
namespace {

// What is longer is not what any version writes.
constexpr size_t kLongestFormat = 200;

std::string formatKey(int rank) { return c10::str("message_format", rank); }

void checkAllHaveCome(c10d::Store& store, const std::vector<std::string>& keys,
                      std::chrono::milliseconds timeout, const char* store_text) {
  std::vector<size_t> missing;
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    if (!store.check({keys[rank]})) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    throwDistributedError(c10::str("making a group: expected ", keys.size(), " ranks within ",
                                   timeout.count(), " ms, but ranks [", c10::Join(", ", missing),
                                   "] have not come\nThe store: ", store_text));
  }
}

}  // namespace

std::string messageFormat() {
  return c10::str("version ", Header::kVersion, ": ", sizeof(Header), " + ", kEagerBytes, " bytes");
}

void agreeOnMessageFormat(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                          std::chrono::milliseconds timeout) {
  const std::string own = messageFormat();
  store->set(formatKey(rank), std::vector<uint8_t>(own.begin(), own.end()));
  std::vector<std::string> keys;
  for (int peer = 0; peer < size; ++peer) {
    keys.push_back(formatKey(peer));
  }
  try {
    store->wait(keys, timeout);
  } catch (const std::exception& error) {
    checkAllHaveCome(*store, keys, timeout, error.what());
    throw;
  }
  for (int peer = 0; peer < size; ++peer) {
    const std::vector<uint8_t> bytes = store->get(keys[peer]);
    const std::string theirs = replaceInvalidUtf8(
        cutUtf8({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kLongestFormat));
    if (theirs != own) {
      throwDistributedError(c10::str("making a group: expected messages of ", own,
                                     ", as this rank, ", rank, ", has them; rank ", peer,
                                     " has messages of ", theirs,
                                     "; use one version of torch_openreg in all processes"));
    }
  }
}

}  // namespace at::openreg

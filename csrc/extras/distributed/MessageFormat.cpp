#include "csrc/extras/distributed/MessageFormat.h"

#include <c10/util/StringUtil.h>

#include <vector>

#include "csrc/extras/distributed/GroupState.h"
#include "csrc/extras/distributed/transport/CollectiveSignature.h"
#include "csrc/extras/distributed/transport/Utf8.h"

namespace at::openreg {
namespace {

// Longer texts were not written by any version.
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
    throwDistributedError(c10::str("creating a process group: timed out after ", timeout.count(),
                                   " ms waiting for ranks [", c10::Join(", ", missing), "] of ",
                                   keys.size(), "\nStore: ", store_text));
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
      throwDistributedError(
          c10::str("creating a process group: ranks disagree on the message format: ", own,
                   " on this rank, ", rank, "; ", theirs, " on rank ", peer,
                   ". Use the same version of torch_openreg in all processes"));
    }
  }
}

}  // namespace at::openreg

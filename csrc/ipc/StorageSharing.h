// Storages that several processes use: sent by their owner, received by others.
//
// Note [Life of a shared storage]
// Sending a storage grants a lease for each message, and the sender keeps a reference to the
// storage until the lease has ended. What the sender frees meanwhile is freed when it next looks:
// at its next share, at collectShared(), and when memory runs short. A message that nobody receives
// keeps its lease for the life of the process. While it is shared a storage cannot be resized,
// which would move it.
//
// The receiver holds the lease, and the mapping of the sender's memory, for as long as its storage
// lives and work that uses it is pending: like a block of the caching allocator, a received storage
// belongs to a stream, the current one when it was received, and record_stream names others. So a
// storage may be freed right after work that uses it was submitted, by any thread. That waits for
// the device if one of these streams has been destroyed, and otherwise for nothing.
//
// Note [Order across processes]
// A message carries an event, recorded when it was made, after what the current stream of the
// sending thread and the streams that the storage belongs to had been given. The receiver's current
// stream waits for it. Later work of either process is for them to order, as with threads.
#pragma once

#include <c10/core/Storage.h>

#include <string>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Makes the message that sends a storage to one receiver.
// Errors: throws if the storage was received from another process, lies in no memory of openreg's,
// or the current stream is capturing.
OPENREG_EXPORT std::string shareStorage(const Storage& storage);

// Receives a storage. The message of a storage that this process sent gives that storage itself. A
// storage that is here already, by another message, is the same object again.
// Errors: throws if the message is damaged or was received before, the sender has ended, or this
// process has no such device.
OPENREG_EXPORT Storage receiveStorage(const std::string& message);

// Whether the storage was received from another process.
OPENREG_EXPORT bool isReceived(const Storage& storage);

// Lets go of what receivers no longer use, those that died included. Returns how many messages are
// still out.
OPENREG_EXPORT size_t collectShared();

}  // namespace c10::openreg

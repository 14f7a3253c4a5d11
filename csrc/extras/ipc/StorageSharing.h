// Storages shared between processes: sent by their owner, received by others.
//
// Note [Life of a shared storage]
// Sending a storage grants a lease for each message. The sender keeps a reference to the storage
// until the lease has ended. The reference is dropped at the sender's next check: at its next
// share, in collectShared(), and when memory runs short. A message that is never received keeps its
// lease for the life of the process. A shared storage cannot be resized, because that would move
// it.
//
// The receiver holds the lease, and the mapping of the sender's memory, until its storage is freed
// and all work that uses it is complete. Like a block of the caching allocator, a received storage
// belongs to a stream, the current one when it was received; record_stream adds others. So any
// thread may free a storage right after it submitted work that uses it. Freeing waits for the
// device if one of these streams has been destroyed, and otherwise does not wait.
//
// Note [Order across processes]
// A message carries an event. It is recorded when the message is made, after the work so far of the
// sending thread's current stream and of the streams that the storage belongs to. The receiver's
// current stream waits for it. The processes must order later work themselves, as threads must.
#pragma once

#include <c10/core/Storage.h>

#include <string>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Makes the message that sends a storage to one receiver.
// Errors: throws if the storage was received from another process, is not in openreg memory, or if
// the current stream is capturing.
OPENREG_EXPORT std::string shareStorage(const Storage& storage);

// Receives a storage. A message that this process sent itself returns the original storage. A
// storage that has been received before, by another message, returns the same object.
// Errors: throws if the message is damaged or was received before, if the sender has ended, or if
// this process has no such device.
OPENREG_EXPORT Storage receiveStorage(const std::string& message);

// Whether the storage was received from another process.
OPENREG_EXPORT bool isReceived(const Storage& storage);

// Releases storages that receivers no longer use, including receivers that died. Returns the number
// of messages whose lease has not ended.
OPENREG_EXPORT size_t collectShared();

}  // namespace c10::openreg

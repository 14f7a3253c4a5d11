#include "csrc/memory/StorageResize.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <utility>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

void resizeStorage(const Storage& storage, size_t size_bytes) {
  StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  const DeviceGuard guard(impl->device());
  DataPtr data = getDeviceAllocator(kDeviceType)->allocate(size_bytes);
  const size_t kept = std::min(impl->nbytes(), size_bytes);
  if (kept > 0) {
    const OpenRegStream stream = getCurrentOpenRegStream();
    if (observe(&Observer::byteCopy, stream, "aten::resize_", data.get(), impl->data(), kept) ==
        Verdict::Run) {
      OPENREG_CHECK(
          orMemcpyAsync(data.get(), impl->data(), kept, orMemcpyDeviceToDevice, stream.stream()));
    }
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(size_bytes);
}

}  // namespace c10::openreg

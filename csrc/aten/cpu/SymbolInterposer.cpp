#include "csrc/aten/cpu/SymbolInterposer.h"

#include <ATen/Context.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace at::openreg {
namespace {

// The entries of a library's dynamic section that locate the slots.
struct Relocations {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * first = nullptr;
  size_t count = 0;
  ElfW(Addr) offset = 0;  // from the addresses of the slots to where they are loaded
};

Relocations relocationsOf(const ElfW(Dyn) * entry) {
  Relocations found;
  for (; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
        break;
      case DT_STRTAB:
        found.names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        break;
      case DT_JMPREL:
        found.first = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        found.count = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
  return found;
}

// Linkers may make the table read-only once it is filled.
bool write(void** slot, void* value) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(slot);
  void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
  if (mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  std::atomic_ref<void*>(*slot).store(value, std::memory_order_release);
  return true;
}

int visitLibrary(dl_phdr_info* library, size_t /*size*/, void* data) {
  const auto wanted = reinterpret_cast<ElfW(Addr)>(&at::globalContext);  // in libtorch_cpu
  const ElfW(Dyn)* dynamic = nullptr;
  bool is_wanted = false;
  for (const ElfW(Phdr)* part = library->dlpi_phdr;
       part != library->dlpi_phdr + library->dlpi_phnum; ++part) {
    const ElfW(Addr) start = library->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && wanted >= start && wanted < start + part->p_memsz) {
      is_wanted = true;
    } else if (part->p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
    }
  }
  if (!is_wanted || dynamic == nullptr) {
    return 0;
  }
  auto* relocations = static_cast<Relocations*>(data);
  *relocations = relocationsOf(dynamic);
  relocations->offset = library->dlpi_addr;
  return 1;
}

}  // namespace

bool redirectTorch(const char* symbol, void* target) {
  Relocations relocations;
  if (dl_iterate_phdr(&visitLibrary, &relocations) == 0 || relocations.symbols == nullptr ||
      relocations.names == nullptr) {
    return false;
  }
  for (size_t i = 0; i < relocations.count; ++i) {
    const ElfW(Rela) & relocation = relocations.first[i];
    const ElfW(Sym) & imported = relocations.symbols[ELF64_R_SYM(relocation.r_info)];
    if (std::strcmp(relocations.names + imported.st_name, symbol) == 0) {
      return write(reinterpret_cast<void**>(relocations.offset + relocation.r_offset), target);
    }
  }
  return false;
}

}  // namespace at::openreg

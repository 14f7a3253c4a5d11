// CUDA's errors: their names and texts, and which of them a kernel's exception is.
//
// Note [Errors of kernels on CUDA]
// A GPU's kernel does not throw. What it checks of its data it asserts, and CUDA reports that as
// error 710. Programs expect it when they wait for the device, as a c10::AcceleratorError. So the
// exceptions by which a CPU kernel rejects its data (c10::IndexError, c10::ValueError, and
// c10::Error itself, as TORCH_CHECK throws them) have code 710 here. One that is no exception of
// torch's has CUDA's code for a failed launch, 719. The others keep their types: on CUDA, too, the
// host throws them, as that an operator is not implemented or that a matrix has no inverse.
//
// Unlike a GPU, the device works again when the error has been raised, so that the next test can
// run; OPENREG_CUDA_STICKY_ERRORS=1 is the exception.
#pragma once

#include <openreg/error.h>

#include <string>

namespace at::openreg {

// CUDA's description of an error, such as "device-side assert triggered"; that of the runtime if
// CUDA does not have the error.
const char* cudaErrorText(orError_t error) noexcept;

// The first lines of the text by which torch reports an error of CUDA: its description, where
// CUDA explains it, and for errors of kernels that they may be late.
std::string describeCudaError(orError_t error);

// Whether an error of a kernel makes the device unusable.
bool areCudaErrorsSticky() noexcept;

}  // namespace at::openreg

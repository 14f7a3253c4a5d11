// Tensors of other layouts than strided, and quantized tensors, as what they consist of.
//
// Each consists of strided tensors, its components, and of metadata that the host keeps:
//   sparse COO             indices, values
//   sparse CSR, CSC, ...   compressed indices, plain indices, values
//   quantized              the integers, or the bytes if these are smaller; the host keeps the
//                          quantizer
//   nested                 the buffer; the host keeps sizes, strides and offsets
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <vector>

namespace at::openreg {

// Whether the tensor is its own and only component.
bool isPlain(const Tensor& tensor);

// The components of a tensor that is not plain; they share its memory.
std::vector<Tensor> componentsOf(const Tensor& tensor);

// A tensor like `model`, which is not plain, of the components given and on their device. On an
// openreg device it owns what the host keeps; on the CPU it shares that with `model`.
Tensor assemble(const Tensor& model, const std::vector<Tensor>& components);

// Makes `tensor` what `model` is, of the components given. Neither is plain. Writes nothing if
// `tensor` is that already.
void assembleInto(const Tensor& tensor, const Tensor& model, const std::vector<Tensor>& components);

}  // namespace at::openreg

// Decomposes quantized tensors and tensors of layouts other than strided.
//
// Such a tensor consists of strided tensors, its components, and of metadata in host memory:
//   sparse COO             indices, values
//   sparse CSR, CSC, ...   compressed indices, plain indices, values
//   quantized              the integers, or bytes if several elements share one; the quantizer is
//                          on the host
//   nested                 the buffer; sizes, strides and offsets are on the host
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <vector>

namespace at::openreg {

// Whether the tensor is its own only component.
bool isPlain(const Tensor& tensor);

// The components of a tensor that is not plain; they alias its memory.
std::vector<Tensor> componentsOf(const Tensor& tensor);

// A tensor like `model`, which is not plain, made of the given components and on their device. On
// an openreg device it owns its host metadata; on the CPU it shares them with `model`.
Tensor assemble(const Tensor& model, const std::vector<Tensor>& components);

// Makes `tensor` equal to `model`, with the given components. Neither is plain. Writes nothing if
// `tensor` is already equal.
void assembleInto(const Tensor& tensor, const Tensor& model, const std::vector<Tensor>& components);

}  // namespace at::openreg

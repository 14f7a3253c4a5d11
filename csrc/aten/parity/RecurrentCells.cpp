#include "csrc/aten/parity/RecurrentCells.h"

#include <torch/library.h>

#include <tuple>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

LayerParameters cellParameters(const Tensor& w_ih, const Tensor& w_hh,
                               const std::optional<Tensor>& b_ih,
                               const std::optional<Tensor>& b_hh) {
  return {w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
}

std::tuple<Tensor, Tensor> lstmCell(const Tensor& input, TensorList hx, const Tensor& w_ih,
                                    const Tensor& w_hh, const std::optional<Tensor>& b_ih,
                                    const std::optional<Tensor>& b_hh) {
  TORCH_CHECK(hx.size() == 2, "lstm_cell: expected two hidden states, got ", hx.size());
  const LayerParameters layer = cellParameters(w_ih, w_hh, b_ih, b_hh);
  const LstmState state = LstmCell::step(layer.inputGates(input), {hx[0], hx[1]}, layer);
  return {state.hidden, state.cell};
}

Tensor gruCell(const Tensor& input, const Tensor& hx, const Tensor& w_ih, const Tensor& w_hh,
               const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
  const LayerParameters layer = cellParameters(w_ih, w_hh, b_ih, b_hh);
  return GruCell::step(layer.inputGates(input), {hx}, layer).hidden;
}

void registerCells(torch::Library& m) {
  m.impl("lstm_cell", TORCH_FN(lstmCell));
  m.impl("gru_cell", TORCH_FN(gruCell));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) { registerCells(m); }
OPENREG_LIBRARY_IMPL(aten, AutogradFunctionality, m) { registerCells(m); }

}  // namespace at::openreg

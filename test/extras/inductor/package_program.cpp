// Loads a package that AOTInductor has made for openreg, runs it, and prints the first output.

#include <ATen/Functions.h>
#include <c10/core/DeviceType.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "package_program: expected the name of a package\n";
    return 2;
  }
  // Python does this when it loads openreg. The loader reads names of devices.
  c10::register_privateuse1_backend("openreg");
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  const auto outputs = loader.run({at::ones({3, 8}, c10::Device(c10::DeviceType::PrivateUse1))});
  std::cout.precision(9);
  std::cout << outputs[0].device().type() << "\n";
  const at::Tensor values = outputs[0].cpu().flatten().contiguous();
  for (int64_t i = 0; i < values.numel(); ++i) {
    std::cout << values.const_data_ptr<float>()[i] << "\n";
  }
  return 0;
}

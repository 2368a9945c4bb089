#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cuda/device.hpp"

namespace casync {

void bind_cuda(pybind11::module_& module) {
  module.def("cuda_devices", &cuda::names_of_devices, pybind11::call_guard<pybind11::gil_scoped_release>(),
             "The names of the GPUs that CUDA's driver sees.");
}

}  // namespace casync

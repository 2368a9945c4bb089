#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cuda/facts.hpp"
#include "cuda/nccl.hpp"

namespace py = pybind11;

namespace casync {
namespace {

py::dict cuda_facts() {
  using namespace py::literals;
  cuda::Facts facts;
  {
    const py::gil_scoped_release release;
    facts = cuda::facts();
  }
  py::list devices;
  for (const auto& device : facts.devices) {
    devices.append(py::dict("name"_a = device.name, "uuid"_a = device.uuid, "bytes"_a = device.bytes,
                            "pci"_a = device.pci, "capability"_a = py::make_tuple(device.major, device.minor)));
  }
  py::list links;
  for (const auto& link : facts.links) {
    links.append(py::make_tuple(link.from, link.to, link.reaches, link.performance_rank));
  }
  return py::dict("version"_a = facts.version, "devices"_a = devices, "links"_a = links);
}

py::tuple nccl_facts(const std::string& library) {
  const cuda::Nccl& nccl = cuda::nccl(library);
  return py::make_tuple(nccl.version, nccl.path);
}

}  // namespace

void bind_cuda(py::module_& module) {
  using namespace py::literals;
  module.def("cuda_facts", &cuda_facts, "What CUDA's driver says of its devices and of the ways between them.");
  module.def("nccl_facts", &nccl_facts, "library"_a,
             "The version and the file of the NCCL that this process has or loads now. `library`: that of a package.");
  module.def("cuda_uuid", &cuda::uuid_of, "number"_a, py::call_guard<py::gil_scoped_release>(),
             "Which GPU has this number in this process.");
}

}  // namespace casync

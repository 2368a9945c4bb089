#include <pybind11/pybind11.h>

#include "bindings/bindings.hpp"
#include "bindings/errors_py.hpp"
#include "common/crc32c.hpp"

namespace py = pybind11;

namespace casync {

void bind_checksum(py::module_& module) {
  using namespace py::literals;
  module.def(
      "crc32c",
      [](std::uintptr_t address, std::size_t bytes) {
        const py::gil_scoped_release release;
        return crc32c({reinterpret_cast<const std::byte*>(address), bytes});
      },
      "address"_a, "bytes"_a, "CRC-32C of memory.");
}

}  // namespace casync

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of CaSync. Use casync.session and the adaptors instead.";
  pybind11::register_exception_translator(&casync::translate_error);
  casync::bind_checksum(module);
  casync::bind_codec(module);
  casync::bind_cuda(module);
  casync::bind_session(module);
  casync::bind_c_api(module);
  casync::bind_shortcuts(module);
  casync::bind_together(module);
  casync::bind_simulate(module);
  casync::bind_phases(module);
  casync::bind_plan_model(module);
  casync::bind_tcp(module);
}

#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "casync/codec.hpp"
#include "casync/planner.hpp"
#include "codec/plugin.hpp"

namespace py = pybind11;

namespace casync {

void bind_codec(py::module_& module) {
  module.def("codec_names", &codec_names, "Names of the codecs that compression= accepts.");
  module.def(
      "check_codec", [](const std::string& spec) { return make_codec(spec)->info().spec; }, py::arg("spec"),
      "Canonical form of a codec spec; InvalidArgumentError if there is no such codec.");
  module.def("check_compression", &check_compression, py::arg("text"),
             "InvalidArgumentError unless the text is a codec spec or auto(...), also in always(...).");
  module.def("load_codec", &codec::load_plugin, py::arg("path"),
             "Load a codec that casync.compll.plugin compiled; returns its name.");
  module.def(
      "isa", [] { return std::array{"baseline", "avx2", "avx512"}[static_cast<std::size_t>(current_isa())]; },
      "Instruction set the codecs use on this processor.");
}

}  // namespace casync

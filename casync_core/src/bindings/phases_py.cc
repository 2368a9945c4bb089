#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "casync/error.hpp"
#include "routes/phase_list.hpp"

namespace py = pybind11;

namespace casync {

void bind_phases(py::module_& module) {
  using namespace py::literals;
  module.def(
      "phase_lists",
      [](bool executed) {
        std::vector<std::string> texts;
        for (const PhaseList& list : every_phase_list()) {
          if (!executed || !why_not_executed(list)) texts.push_back(text_of(list));
        }
        return texts;
      },
      "executed"_a = true, "Texts of all valid lists of phases, or of those that are executed.");
  module.def(
      "why_not_phases",
      [](const std::string& text) -> std::string {
        try {
          const auto list = parse_phases(text);
          if (!list) return "no list of phases";
          if (const auto why = why_not_valid(*list)) return *why;
          return why_not_executed(*list).value_or("");
        } catch (const InvalidArgument& error) {
          return error.what();
        }
      },
      "text"_a, "Why a topology's text is no list of phases that is executed; empty if it is one.");
}

}  // namespace casync

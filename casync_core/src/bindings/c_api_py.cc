#include "bindings/bindings.hpp"
#include "bindings/bound_session.hpp"
#include "session/c_api.hpp"
#include "session/published.hpp"

namespace py = pybind11;

namespace casync {

void bind_c_api(py::module_& module) {
  using namespace py::literals;
  module.attr("c_api") = py::capsule(static_cast<const void*>(&c_api()), CASYNC_C_API_CAPSULE);
  module.def(
      "c_session",
      [](const py::object& session) {
        py::capsule capsule(c_session(session.cast<BoundSession&>()), CASYNC_SESSION_CAPSULE,
                            [](PyObject* dying) { Py_DECREF(static_cast<PyObject*>(PyCapsule_GetContext(dying))); });
        if (PyCapsule_SetContext(capsule.ptr(), session.inc_ref().ptr()) != 0) throw py::error_already_set();
        return capsule;
      },
      "session"_a, "The session for casync/c_api.h, as a capsule that keeps it alive.");
  module.def(
      "publish", [](BoundSession& session, std::int32_t process_set) { published().put(process_set, session); },
      "session"_a, "process_set"_a, "Have glue find the session by this number: `hold` of casync/c_api.h.");
  module.def(
      "withdraw", [](std::int32_t process_set) { published().take(process_set); }, "process_set"_a,
      py::call_guard<py::gil_scoped_release>(), "The opposite; returns when no glue holds the session.");
}

}  // namespace casync

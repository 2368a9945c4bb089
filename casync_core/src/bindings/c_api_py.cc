#include "bindings/bindings.hpp"
#include "bindings/bound_session.hpp"
#include "session/c_api.hpp"

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
}

}  // namespace casync

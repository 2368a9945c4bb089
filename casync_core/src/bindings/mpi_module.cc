/// casync._mpi: the MPI transport for Python. An extension of its own, so that a world of one never loads libmpi.
#include <mpi.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/errors_py.hpp"
#include "bindings/transport_capsule.hpp"
#include "casync/error.hpp"
#include "transport/mpi/environment.hpp"
#include "transport/mpi/mpi_transport.hpp"

namespace py = pybind11;
using casync::transport::mpi::Environment;

namespace {

/// The first call is collective over the world, so others may have to run meanwhile.
const Environment& environment() {
  const py::gil_scoped_release release;
  return Environment::get();
}

py::capsule connect(int session_tag, const std::optional<std::vector<int>>& peers) {
  if (peers && peers->empty()) throw casync::InvalidArgument("peers is empty: give None for all ranks");
  std::unique_ptr<casync::Transport> transport;
  {
    const py::gil_scoped_release release;
    transport = casync::transport::connect_mpi(session_tag, peers.value_or(std::vector<int>{}));
  }
  return casync::capsule_of(std::move(transport));
}

}  // namespace

PYBIND11_MODULE(_mpi, module) {
  module.doc() =
      "The MPI transport. Nothing happens at import; the first call of anything but library_version, note_failure and "
      "leave "
      "initialises MPI and is collective over all processes of mpirun.";
  py::register_local_exception_translator(&casync::translate_error);
  module.def("connect", &connect, py::arg("session_tag"), py::arg("peers") = py::none(),
             "A transport over the world ranks `peers` (None: all), as a capsule 'casync.Transport' that holds a "
             "std::shared_ptr<casync::Transport>*. Collective over them.");
  module.def("world_rank", [] { return environment().rank(); });
  module.def("world_size", [] { return environment().size(); });
  module.def("hosts", [] { return environment().hosts(); }, "Per rank of the world, the lowest rank on the same host.");
  module.def(
      "thread_level", [] { return environment().thread_level(); }, "What MPI_Init_thread provided; 3 is MULTIPLE.");
  module.def("library_version", &Environment::library_version);
  module.def(
      "note_failure", [] { Environment::note_failure(); },
      "A session ended by an error: leave without MPI_Finalize, which may never return after a fault.");
  module.def(
      "leave",
      [](bool in_order) {
        const py::gil_scoped_release release;
        Environment::leave(in_order);
      },
      py::arg("in_order"), "At the end of the process: MPI_Finalize, if all processes leave in good order.");
}

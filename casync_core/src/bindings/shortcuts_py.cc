#include <pybind11/pybind11.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/bound_session.hpp"
#include "bindings/dlpack.hpp"
#include "bindings/fast_method.hpp"

namespace py = pybind11;

namespace casync {
namespace {

const dlpack::ExchangeTable* table_of(const py::type& type) {
  const py::object capsule = py::getattr(type, dlpack::kAttribute, py::none());
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsule) == 0) return nullptr;
  const auto* const table =
      static_cast<const dlpack::ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
  return table->major_version == dlpack::kMajorVersion && table->describe != nullptr ? table : nullptr;
}

/// False for a tensor that DLPack has no words for, say a sparse one.
bool describe(const dlpack::ExchangeTable& table, PyObject* tensor, dlpack::Tensor& described) {
  if (table.describe(tensor, &described) == 0) return true;
  PyErr_Clear();
  return false;
}

bool is_contiguous(const dlpack::Tensor& tensor) {
  std::int64_t stride = 1;
  for (std::int32_t i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.shape[i];
  }
  return true;
}

bool same(Arguments given, const py::tuple& then) {
  const auto equal = [](PyObject* a, const py::handle& b) {
    const int result = PyObject_RichCompareBool(a, b.ptr(), Py_EQ);
    if (result < 0) throw py::error_already_set();
    return result == 1;
  };
  return std::equal(given.begin(), given.end(), then.begin(), then.end(), equal);
}

/// With the GIL.
class Shortcuts {
 public:
  Shortcuts(py::object core, py::dict pending)
      : core_(std::move(core)), session_(core_.cast<BoundSession&>()), pending_(std::move(pending)) {}

  void remember(std::uint32_t registration, const std::string& name, const py::object& tensor, const py::args& terms) {
    const auto type = py::type::of(tensor);
    const dlpack::ExchangeTable* const table = table_of(type);
    dlpack::Tensor now;
    if (table == nullptr || !describe(*table, tensor.ptr(), now) || now.device.kind != dlpack::kCpu) return;
    if (uses_.size() >= sweep_at_) {
      std::erase_if(uses_, [this](const auto& use) { return !session_.knows(use.second.registration); });
      sweep_at_ = std::max(kSweep, 2 * uses_.size());
    }
    uses_.insert_or_assign(name, Use{registration, terms, type, table, now.device, now.dtype,
                                     std::vector<std::int64_t>(now.shape, now.shape + now.dimensions)});
  }

  void clear() { uses_.clear(); }

  /// Given: name, tensor, terms.
  py::object registration(Arguments given) const {
    dlpack::Tensor now;
    const Use* const use = find(given[0], given[1], given.subspan(2), now);
    return use == nullptr || !session_.use(use->registration) ? py::none() : py::cast(use->registration);
  }

  /// Given: name, tensor, wake, terms.
  py::object submit(Arguments given) const {
    dlpack::Tensor now;
    const Use* const use = find(given[0], given[1], given.subspan(3), now);
    if (use == nullptr || !is_contiguous(now)) return py::none();
    void* const address = static_cast<char*>(now.data) + now.byte_offset;
    if (!session_.use(use->registration)) return py::none();
    const py::int_ handle(session_.submit(use->registration, address, address, 0, argument<bool>(given, 2)));
    if (PyDict_SetItem(pending_.ptr(), handle.ptr(), given[1]) != 0) throw py::error_already_set();
    return handle;
  }

 private:
  struct Use {
    std::uint32_t registration;
    py::tuple terms;
    py::type type;
    const dlpack::ExchangeTable* table;
    dlpack::Device device;
    dlpack::DataType dtype;
    std::vector<std::int64_t> shape;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  /// The use of `name` that this would be again, with what the tensor is `now`; else null.
  const Use* find(PyObject* name, PyObject* tensor, Arguments terms, dlpack::Tensor& now) const {
    if (!PyUnicode_Check(name)) return nullptr;
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) throw py::error_already_set();
    const auto at = uses_.find(std::string_view(text, static_cast<std::size_t>(size)));
    if (at == uses_.end()) return nullptr;
    const Use& use = at->second;
    // Comparing may run the program's code, and another thread, which may put another use in the place of this one.
    const py::tuple then = use.terms;
    if (!same(terms, then) || !use.terms.is(then)) return nullptr;
    if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != use.type.ptr()) return nullptr;
    if (!describe(*use.table, tensor, now) || now.device != use.device || now.dtype != use.dtype) return nullptr;
    return std::equal(now.shape, now.shape + now.dimensions, use.shape.begin(), use.shape.end()) ? &use : nullptr;
  }

  py::object core_;
  Session& session_;
  py::dict pending_;
  static constexpr std::size_t kSweep = 3072;
  std::unordered_map<std::string, Use, Hash, std::equal_to<>> uses_;
  std::size_t sweep_at_ = kSweep;  // so many: those that the session has forgotten go
};

}  // namespace

void bind_shortcuts(py::module_& module) {
  using namespace py::literals;
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  py::class_<Shortcuts> shortcuts(module, "Shortcuts", py::is_final());
  shortcuts.def(py::init<py::object, py::dict>(), "core"_a, "pending"_a)
      .def("remember", &Shortcuts::remember)
      .def("clear", &Shortcuts::clear);
  def_fast<[](const Shortcuts& of, Arguments given) { return of.registration(given); }, 2, kAny>(
      shortcuts, "registration", "The registration of a use like the last one; else None.");
  def_fast<[](const Shortcuts& of, Arguments given) { return of.submit(given); }, 3, kAny>(
      shortcuts, "submit", "Submits a use like the last one, in place; returns the handle, or None.");
}

}  // namespace casync

#include "wires.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace standin {
namespace {

/// Segments that this process has made and that nobody has forgotten.
class Names {
 public:
  ~Names() {
    for (const std::string& name : names_) shm_unlink(name.c_str());
  }
  std::string add() {
    const std::lock_guard lock(mutex_);
    return *names_.insert("/standin-nccl-" + std::to_string(getpid()) + "-" + std::to_string(++made_)).first;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
  int made_ = 0;
};
Names names;

}  // namespace

std::string Wires::make() {
  std::string name = names.add();
  const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Wires)) != 0) name.clear();
  close(file);
  return name;
}

std::shared_ptr<Wires> Wires::open(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* const memory = mmap(nullptr, sizeof(Wires), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<Wires*>(memory), [](Wires* wires) { munmap(wires, sizeof(Wires)); }};
}

void Wires::forget(const std::string& name) { shm_unlink(name.c_str()); }

}  // namespace standin

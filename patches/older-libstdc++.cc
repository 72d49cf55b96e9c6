// What GCC 11's headers call and the libstdc++ of GCC 8 (RHEL 8) lacks. Linked into the libraries of
// Horovod's portable wheel, whose version script hides it from others.
#include <exception>
#include <new>
#include <sstream>

namespace std {
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

template basic_ostringstream<char>::basic_ostringstream();
template basic_stringstream<char>::basic_stringstream();
}  // namespace std

// exception_ptr counts its references inline since GCC 11; its copy constructor and its destructor,
// which older code calls, are in every libstdc++.
extern "C" {
void copy_pointer(void* to, const void* from) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void end_pointer(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
void add_reference(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void release(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void add_reference(void* pointer) {
  void* copy;
  copy_pointer(&copy, pointer);  // and never ended
}

void release(void* pointer) {
  end_pointer(pointer);
  *static_cast<void**>(pointer) = nullptr;
}
}

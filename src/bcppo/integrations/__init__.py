"""This library's tasks in other libraries; each module needs the library it is named after."""
